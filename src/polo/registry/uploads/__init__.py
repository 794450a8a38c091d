"""Uploads: files that provers send in pieces, and can go on with after any interruption.

Size and digest are fixed before the first byte, and the kind of file bounds the size. A piece is on
the disk before it is acknowledged. The partial file lies in the data folder of the server; when it
is whole and its digest is right, it becomes an object.
"""
