"""The methods of the arena: one file a family. Each has a tuple `METHODS`."""
