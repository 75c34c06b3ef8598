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

static bool targets_are_parameters(const ftmem__family *family, int32_t role)
{
    if (role == FTMEM_ROLE_ROUTER) return !family->router_linear;
    return role == FTMEM_ROLE_EXPERTS_UP || role == FTMEM_ROLE_EXPERTS_DOWN;
}

uint32_t ftmem__family_targets(const ftmem__family *family)
{
    uint32_t set = 0;
    int32_t role;
    for (role = 0; role < FTMEM_ROLE_END; role++) {
        bool left = targets_are_parameters(family, role) && family->experts_as == FTMEM__EXPERTS_AS_PARAMETERS;
        if (ftmem__is_linear(role) && family->modules[role] && !left) set |= 1u << role;
    }
    return set;
}

/* Module names from before the experts became 3-D parameters. */
static bool targets_old_name(const ftmem__family *family, int32_t role, const char *name)
{
    static const char *const up[][2] = { { NULL, NULL }, { "gate_proj", "up_proj" }, { "w1", "w3" } };
    static const char *const down[] = { NULL, "down_proj", "w2" };
    uint8_t as = family->experts_as;
    if (as == FTMEM__EXPERTS_AS_PARAMETERS) return false;
    if (role == FTMEM_ROLE_EXPERTS_UP) return strcmp(name, up[as][0]) == 0 || strcmp(name, up[as][1]) == 0;
    return role == FTMEM_ROLE_EXPERTS_DOWN && strcmp(name, down[as]) == 0;
}

static bool targets_named(const ftmem__family *family, int32_t role, const char *name)
{
    if (!ftmem__is_linear(role) || !family->modules[role]) return false;
    if (targets_are_parameters(family, role) && family->experts_as == FTMEM__EXPERTS_AS_PARAMETERS)
        return strcmp(family->modules[role], name) == 0; /* LoraConfig.target_parameters */
    return targets_match(family->modules[role], name) || targets_old_name(family, role, name);
}

static const char *targets_name(const void *context, int32_t index)
{
    const ftmem__family *family = context;
    int32_t role, seen = 0;
    if (index == 0) return "all-linear";
    for (role = 0; role < FTMEM_ROLE_END; role++)
        if (ftmem__is_linear(role) && family->modules[role] && ++seen == index) return family->modules[role];
    return NULL;
}

static int32_t targets_count(const ftmem__family *family)
{
    int32_t role, n = 1;
    for (role = 0; role < FTMEM_ROLE_END; role++) n += ftmem__is_linear(role) && family->modules[role] != NULL;
    return n;
}

/* Linears of towers that have names of their own, as PEFT lists them when all are meant. */
static bool targets_of_tower(const char *name)
{
    static const char *const names[] = { "linear", "input_proj", "embedding_projection", "input_proj_linear", "relative_k_proj", "output_proj" };
    int32_t i;
    for (i = 0; i < FTMEM__COUNT(names); i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

ftmem_status ftmem_adapter_target(ftmem_adapter *adapter, const ftmem_model *model, const char *name, ftmem_error *error)
{
    const ftmem__family *family;
    ftmem__names names;
    uint32_t found = 0;
    int32_t role;
    if (!adapter || !model || !name) return ftmem__fail(error, FTMEM_E_ARGUMENT, "adapter.targets", "NULL", "adapter, model and name must not be NULL.");
    family = ftmem__family_of(model);
    if (ftmem__same(name, "all-linear")) found = ftmem__family_targets(family) | (model->tower ? 1u << FTMEM_ROLE_TOWER : 0);
    for (role = 0; role < FTMEM_ROLE_END; role++)
        if (targets_named(family, role, name)) found |= 1u << role;
    for (role = 0; role < FTMEM_ROLE_END; role++)
        if (model->tower && targets_are_parameters(family, role)) found &= ~(1u << role); /* PEFT knows the old names of text models alone */
    names.at = targets_name;
    names.context = family;
    names.count = targets_count(family);
    if (model->tower && targets_of_tower(name)) found |= 1u << FTMEM_ROLE_TOWER;
    if (model->tower && ftmem__same(name, "all-linear")) found |= 1u << FTMEM_ROLE_TOWER;
    if (!found) return ftmem__fail_unknown(error, "adapter.targets", "LoRA target", name, &names);
    adapter->targets |= found;
    return FTMEM_OK;
}
