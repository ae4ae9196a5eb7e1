"""Applications from templates, for the command `init` and for requests.

catalogue: the templates, each a function from a choice to a JSAP profile; options: what a template can be asked for;
values: the values of options as a choice, with names of people resolved.
"""
