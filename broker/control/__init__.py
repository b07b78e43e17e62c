"""The control plane's drivers: who leads the cluster, who is a member, and what the leader does about it."""
