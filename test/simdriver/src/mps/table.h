/* Output of commands: rows of text, the first of which contains the column names. */
#pragma once
#include <stdbool.h>
#include <stdio.h>

enum { MAX_COLUMNS = 8 };

struct table {
	char *(*rows)[MAX_COLUMNS];
	int count, columns;
};

/* Adds a row. The text, formatted as by printf, consists of the cells, separated by '\n'. */
void table_add(struct table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints a table in a format: "table", "csv" or "csv,noheader"; false if the format is unknown. */
bool table_print(const struct table *t, const char *format, FILE *out);

/* The cell of a row in a column; NULL if there is no such column. */
const char *table_cell(const struct table *t, int row, const char *column);

void table_free(struct table *t);
