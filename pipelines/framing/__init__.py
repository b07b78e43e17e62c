"""Keys and values in the frame of a schema registry: how rows become Avro, Protobuf or JSON that its clients read."""
