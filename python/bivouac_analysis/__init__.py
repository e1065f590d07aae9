"""Reports and advice from what Bivouac measures.

`explore` reads the results of `bivouac explore run` and says how many I/O nodes each access pattern wants; `characterize` reads
those of `bivouac characterize` and says which storage suits which accesses. `statistics` holds the tests behind both.
`darshan` reads Darshan logs and derives patterns files from them, and `advice` brings logs and results together. The command line is in
`__main__`; the program `bivouac` calls it.
"""

__version__ = "0.1.0"
