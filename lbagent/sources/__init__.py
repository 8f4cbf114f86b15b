"""Sources of objects, a folder or module each: manifest folder, Kubernetes API, operator, synthetic load.

Each implements `objects.source.Source`; the agent imports it. A source does not import another one; `manifest` has the parts for
reading YAML. `resolve` interprets the objects.
"""
