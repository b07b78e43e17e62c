"""The edits of the manifest, one file for each kind of thing that they change. No I/O."""
