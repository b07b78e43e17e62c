"""The control plane's drivers: the cluster's leader, its members, and the leader's actions."""
