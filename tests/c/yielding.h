/* For programs of several MPI ranks on fewer cores. */
#ifndef YIELDING_H
#define YIELDING_H

#include <dlfcn.h>
#include <sched.h>
#include <stddef.h>

/* MPICH's waiting ranks spin and, as Debian builds it, never yield: with fewer cores than ranks each barrier then costs
 * whole time slices. The executable's own symbol comes before libucp's, and yields when there was nothing to do. */
unsigned ucp_worker_progress(void *worker)
{
    static unsigned (*real)(void *);
    if (real == NULL)
        real = (unsigned (*)(void *))dlsym(RTLD_NEXT, "ucp_worker_progress");
    unsigned events = real == NULL ? 0 : real(worker);
    if (events == 0)
        sched_yield();
    return events;
}

#endif
