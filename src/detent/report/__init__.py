"""Pictures of what runs recorded. Reads run directories, never trains."""
