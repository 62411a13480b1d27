"""The tiers' room, and the cache images that come into them."""
