"""Front doors for other tools' users. Each needs its tool, so nothing is imported before it is asked for."""
