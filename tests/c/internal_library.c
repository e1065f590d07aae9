// Libraries for internal.c: built three times, each time as another one.
#include <stddef.h>
#ifdef CONVERTER
#include <gconv.h>
#include <stdio.h>
int gconv_init(struct __gconv_step *step) {
    puts("the converter is loaded");
    step->__min_needed_from = step->__max_needed_from = 1;
    step->__min_needed_to = step->__max_needed_to = 4;
    step->__stateful = 0;
    return __GCONV_OK;
}
int gconv(void) { return __GCONV_OK; }
#elif defined(NEEDED)
int needed(void) { return 42; }
#else
int needed(void);
int answer(void) { return needed(); }
#endif
