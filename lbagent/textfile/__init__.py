"""Text files that people write: read with bounds, YAML with line numbers, followed while they change. No word of what they mean."""
