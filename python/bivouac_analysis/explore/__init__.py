"""The report of an exploration: how many I/O nodes each access pattern wants.

`results` reads what `bivouac explore run` wrote, `choices` compares the numbers of I/O nodes for each pattern, `tables`, `words` and
`figures` present that, and `report` puts them into one page. Each knows only those before it.
"""
