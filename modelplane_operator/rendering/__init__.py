"""What follows from an object: its children as complete manifests, for server-side apply.

Pure functions: an object, and what was observed around it, in; manifests, or the reason why there are none, out. A
manifest is a dict literal that reads like the YAML.
"""
