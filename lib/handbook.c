/* The rules of thumb that people know, to the digit. Quoted, not endorsed: docs/handbook.md says where they miss. */
#include "common.h"

double ftmem_handbook_bytes_per_parameter(int32_t dtype)
{
    switch (dtype) {
    case FTMEM_FP32: return 4;
    case FTMEM_BF16:
    case FTMEM_FP16: return 2;
    case FTMEM_INT8: return 1;
    case FTMEM_NF4:
    case FTMEM_FP4: return 0.5;
    default: return 0;
    }
}

/* weights + gradients in the dtype, two Adam moments in fp32 */
double ftmem_handbook_full_bytes(double parameters, int32_t dtype)
{
    double each = ftmem_handbook_bytes_per_parameter(dtype);
    return each > 0 ? parameters * (each + each + 8) : 0;
}

double ftmem_handbook_estimate_bytes(double parameters, double micro_batch, double sequence, int32_t dtype)
{
    double full = ftmem_handbook_full_bytes(parameters, dtype);
    return full > 0 ? full + micro_batch * sequence * 4096.0 * 4.0 : 0;
}
