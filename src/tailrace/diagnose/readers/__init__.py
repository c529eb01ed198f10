"""What a file or directory holds, and how it becomes evidence. The only place of this floor that opens files.

One module a format, in the order of `formats`: the particular before the general, so that a table of requests is not
taken for a table. What several formats share (units, headings, grids, JSON of any size, stamps) lies beside them; logs
have a folder, because one file may hold many. A reader says what is written, with its place; what it means is for
causes to say.
"""
