/* LoRA targets: what people call a family's linears. */
#include "families.h"

const char *ftmem_role_module(const ftmem_model *model, int32_t role)
{
    if (!model || role < 0 || role >= FTMEM_ROLE_END) return NULL;
    return ftmem__family_of(model)->modules[role];
}

/* "attn.c_proj" is also found as "c_proj": PEFT matches a name against the end of a module's path. */
static bool targets_match(const char *module, const char *name)
{
    size_t n = strlen(module), m = strlen(name);
    if (m > n || strcmp(module + n - m, name) != 0) return false;
    return m == n || module[n - m - 1] == '.';
}

static bool targets_linear(const ftmem__family *family, int32_t role)
{
    return family->modules[role] && (FTMEM_ROLES_ALL_LINEAR >> role & 1u);
}

static const char *targets_name(const void *context, int32_t index)
{
    const ftmem__family *family = context;
    int32_t role, seen = 0;
    if (index == 0) return "all-linear";
    for (role = 0; role < FTMEM_ROLE_END; role++)
        if (targets_linear(family, role) && ++seen == index) return family->modules[role];
    return NULL;
}

static int32_t targets_count(const ftmem__family *family)
{
    int32_t role, n = 1;
    for (role = 0; role < FTMEM_ROLE_END; role++) n += targets_linear(family, role);
    return n;
}

ftmem_status ftmem_adapter_target(ftmem_adapter *adapter, const ftmem_model *model, const char *name, ftmem_error *error)
{
    const ftmem__family *family;
    ftmem__names names;
    uint32_t found = 0;
    int32_t role;
    if (!adapter || !model || !name) return ftmem__fail(error, FTMEM_E_ARGUMENT, "adapter.targets", "NULL", "adapter, model and name must not be NULL.");
    family = ftmem__family_of(model);
    for (role = 0; role < FTMEM_ROLE_END; role++) {
        if (!targets_linear(family, role)) continue;
        if (ftmem__same(name, "all-linear") || targets_match(family->modules[role], name)) found |= 1u << role;
    }
    names.at = targets_name;
    names.context = family;
    names.count = targets_count(family);
    if (model->tower && ftmem__same(name, "all-linear")) found |= 1u << FTMEM_ROLE_TOWER;
    if (!found) return ftmem__fail_unknown(error, "adapter.targets", "LoRA target", name, &names);
    adapter->targets |= found;
    return FTMEM_OK;
}
