"""The engine in this process, for the tables and jobs of a small fleet: PySpark's frames, written as SQL of DuckDB.

kinds: types of columns; columns, functions, aggregates: expressions; frames: rows; session: DuckDB, and reading and
writing of files. The definitions of tables and results stay where they are: `lazy.F` gives them the functions of the
engine.
"""
