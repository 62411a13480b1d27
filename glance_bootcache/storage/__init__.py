"""What lies on the storage node, and is served: bases and cache images, in two tiers."""
