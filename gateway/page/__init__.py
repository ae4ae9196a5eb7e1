"""The web page: its built files, those of the documents, and the rows of its views for programs.

source/: JavaScript and CSS; build.sh bundles them into built/, which is not in the repository; assets: reads built/;
documents: reads built-docs/, which docs_site/build.sh makes;
rows: results and lists as arrays of objects, or as CSV.
"""
