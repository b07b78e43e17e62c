"""The benchmark: what a broker reaches of what the machine could, as ratios measured in one run. Run by `make bench`."""
