"""The report of a characterization: which storage suits which accesses.

`results` reads what `bivouac characterize` wrote, `measures` puts repetitions together and fits floods, `words`, `tables` and `figures`
present that, and `report` puts them into one page. Each knows only those before it.
"""
