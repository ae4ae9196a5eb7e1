"""The web page: its built files, and the rows of its views for programs.

source/: JavaScript and CSS; build.sh bundles them into built/, which is not in the repository; assets: reads built/;
rows: results and lists as arrays of objects, or as CSV.
"""
