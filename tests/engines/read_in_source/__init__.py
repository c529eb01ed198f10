"""Answers of engines that were never run, made from the names and messages in their source."""
