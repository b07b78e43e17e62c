"""The benchmark: a broker's results as shares of the machine's limits, measured in one run. Run by `make bench`."""
