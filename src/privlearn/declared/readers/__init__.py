"""One file for each library whose runs can be read: a new library is a file in this folder.

The file's name, with dashes, is the name of the library. The file defines `LIBRARY`, a
`PeerLibrary`, and imports the library itself only within functions.
"""
