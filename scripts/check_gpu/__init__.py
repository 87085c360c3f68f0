"""What only a GPU can show of kiln, in parts that run alone, each with a time limit, a log and a recorded outcome.

`__main__` reads the command line; `runner` starts each part in a process of its own and sums up; `parts` lists them. A part is a function of a
`Setting` (paths, device, programs) that raises `Failed` with what does not hold. With `--rehearse` the same functions run on the CPU with
tiny sizes. Python's standard library alone; nothing else of kiln needs Python.
"""
