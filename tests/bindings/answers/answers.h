/* What the C and C++ programs share: reading questions. */
#ifndef ANSWERS_H
#define ANSWERS_H

#include <stdio.h>
#include <string.h>

/* Reads "KIND<tab>TEXT" into line; points text behind the tab. 0 at the end. */
static inline int next_question(char *line, int size, char **text) {
    if (!fgets(line, size, stdin)) return 0;
    line[strcspn(line, "\n")] = 0;
    *text = strchr(line, '\t');
    if (!*text) return 0;
    *(*text)++ = 0;
    return 1;
}

#endif
