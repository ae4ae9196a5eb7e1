"""Ships change logs to the cloud and turns them into tables there; see README.md in this folder."""
