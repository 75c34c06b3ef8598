/* From allocated to reserved and process, the interval, and the verdict. */
#include "step.h"

void ftmem__tiers(const ftmem__step *step, ftmem_memory *m)
{
    uint64_t expected = m->allocated.expected;
    (void)step;
    m->allocated.lower = expected - expected / 20;
    m->allocated.upper = expected + expected / 20;
    m->reserved = m->allocated;
    m->process = m->allocated;
}
