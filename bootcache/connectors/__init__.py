"""How a base is reached: connectors, and the links to them."""
