#define _GNU_SOURCE
#include "table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void table_add(struct table *t, const char *format, ...)
{
	char *text, *cell;
	va_list values;
	va_start(values, format);
	if (vasprintf(&text, format, values) < 0)
		abort();
	va_end(values);
	t->rows = realloc(t->rows, (t->count + 1) * sizeof *t->rows);
	if (!t->rows)
		abort();
	char *rest = text;
	t->columns = 0;
	while (t->columns < MAX_COLUMNS && (cell = strsep(&rest, "\n")))
		t->rows[t->count][t->columns++] = strdup(cell);
	t->count++;
	free(text);
}

static void print_csv(const struct table *t, int first, FILE *out)
{
	for (int r = first; r < t->count; r++)
		for (int c = 0; c < t->columns; c++) {
			const char *cell = t->rows[r][c], *quote = strchr(cell, ',') ? "\"" : "";
			fprintf(out, "%s%s%s%s", quote, cell, quote, c < t->columns - 1 ? "," : "\n");
		}
}

static void print_aligned(const struct table *t, FILE *out)
{
	int widths[MAX_COLUMNS] = {0};
	for (int r = 0; r < t->count; r++)
		for (int c = 0; c < t->columns; c++)
			if ((int)strlen(t->rows[r][c]) > widths[c])
				widths[c] = strlen(t->rows[r][c]);
	for (int r = 0; r < t->count; r++)
		for (int c = 0; c < t->columns; c++)
			if (c < t->columns - 1)
				fprintf(out, "%-*s  ", widths[c], t->rows[r][c]);
			else
				fprintf(out, "%s\n", t->rows[r][c]);
}

bool table_print(const struct table *t, const char *format, FILE *out)
{
	if (!strcmp(format, "csv"))
		print_csv(t, 0, out);
	else if (!strcmp(format, "csv,noheader"))
		print_csv(t, 1, out);
	else if (!strcmp(format, "table"))
		print_aligned(t, out);
	else
		return false;
	return true;
}

const char *table_cell(const struct table *t, int row, const char *column)
{
	for (int c = 0; c < t->columns; c++)
		if (!strcmp(t->rows[0][c], column))
			return t->rows[row][c];
	return NULL;
}

void table_free(struct table *t)
{
	for (int r = 0; r < t->count; r++)
		for (int c = 0; c < t->columns; c++)
			free(t->rows[r][c]);
	free(t->rows);
}
