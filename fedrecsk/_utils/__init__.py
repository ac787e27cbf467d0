"""Small tools that every other folder uses."""
