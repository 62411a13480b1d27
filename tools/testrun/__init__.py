"""All tests at once: several clouds beside each other, unit and functional tests beside them."""
