"""What all rooms of the engine stand on: names of objects, the manifest, the proof of the lead, and whether the broker runs."""
