"""What a file or directory holds, and how it becomes evidence. The only place of this floor that opens files."""
