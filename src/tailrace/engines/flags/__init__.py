"""What engines are started with: their options by version, and how command lines, logs and model files spell them.

Nothing here opens a file or starts a program: text in, options and facts out. Advice on what was found is next door.
"""
