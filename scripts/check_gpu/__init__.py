"""Checks of kiln that need a GPU, in parts that run alone, each with a time limit, a log and a recorded outcome.

`__main__` reads the command line; `runner` starts each part in its own process and prints the summary; `parts`
lists them. A part is a function of a `Setting` (paths, device, programs) that raises `Failed` with the faults it
found. With `--rehearse` the same functions run on the CPU with tiny sizes. Only Python's standard library is used;
nothing else in kiln needs Python.
"""
