"""The arena: rivals of LiBO on environments of several kinds."""
