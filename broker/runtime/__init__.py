"""Clock, randomness, settings, logging, metrics and tasks: the only place that touches them."""
