"""The storage nodes of a cloud: beats, homes of images, and messages that are handed on."""
