/* kernel.c: from a name and arguments to a launch: check, choose, launch; and the reasons. */
#include <stdio.h>
#include "ctx.h"

static const kernel *const kernels[] = {
#define TIDE_KERNEL(name) &kernel_##name,
#include "../kernels/kernels.def"
#undef TIDE_KERNEL
};

const kernel *kernel_find(const char *name) {
  for (int i = 0; name && i < COUNT_OF(kernels); i++)
    if (!strcmp(kernels[i]->name, name)) return kernels[i];
  return NULL;
}

const char *tide_kernel_name(int32_t index) {
  return index >= 0 && index < COUNT_OF(kernels) ? kernels[index]->name : NULL;
}

const char *tide_kernel_variant(const char *name, int32_t index) {
  const kernel *k = kernel_find(name);
  return k && index >= 0 && index < k->n_variants ? k->variants[index].name : NULL;
}

int64_t tide_kernel_scratch(const char *name, const void *args, int64_t args_bytes) {
  const kernel *k = kernel_find(name);
  if (!k || !args || args_bytes != (int64_t)k->args_bytes) return -1;
  return k->scratch ? k->scratch(args) : 0;
}

/* Why a variant does not serve these arguments here; false: it does. */
static bool refuses(const kernel_variant *v, const kernel_caps *caps, const void *args, char *why, size_t why_bytes) {
  static const char *const cpu_levels[] = {"?", "plain C", "x86-64-v3", "x86-64-v4"};
  if (v->backend != caps->backend) {
    snprintf(why, why_bytes, "runs on %s", v->backend == KERNEL_CPU ? "cpu" : "cuda");
    return true;
  }
  if (v->level_only ? caps->level != v->level : caps->level < v->level) {
    if (v->backend == KERNEL_CPU)
      snprintf(why, why_bytes, "needs %s, this context uses %s", cpu_levels[v->level], cpu_levels[caps->level]);
    else
      snprintf(why, why_bytes, "needs sm_%d%s, this device is sm_%d", v->level, v->level_only ? "a" : "", caps->level);
    return true;
  }
  return v->refuse && v->refuse(args, why, why_bytes);
}

static const kernel_variant *choose(const kernel *k, const kernel_caps *caps, const char *name, const void *args, char *why,
                                    size_t why_bytes) {
  snprintf(why, why_bytes, "no such variant");
  for (int i = k->n_variants - 1; i >= 0; i--) {
    if (name && strcmp(k->variants[i].name, name)) continue;
    if (!refuses(&k->variants[i], caps, args, why, why_bytes)) return &k->variants[i];
  }
  return NULL;
}

tide_status kernel_launch_on(dev *d, const kernel *k, const char *variant, const void *args, void *stream) {
  char why[256], name[32];
  if (k->check && k->check(args, why, sizeof why)) return tide_fail(d->ctx, TIDE_EINVAL, "%s: %s", k->name, why);
  if (d->ops == &dev_null) return TIDE_OK;
  const kernel_variant *v = choose(k, &d->caps, variant, args, why, sizeof why);
  if (!v)
    return tide_fail(d->ctx, TIDE_EUNSUPPORTED, "%s: no variant %s%sserves this on %s: %s", k->name, variant ? variant : "",
                     variant ? " " : "", dev_name(d, name), why);
  return d->ops->launch(d, k, v, args, stream);
}

static tide_status find_with_args(tide_ctx *ctx, const char *name, const void *args, int64_t args_bytes, const kernel **out) {
  const kernel *k = kernel_find(name);
  if (!k) return tide_fail(ctx, TIDE_EINVAL, "kernel: no such kernel (got \"%.40s\")", name ? name : "");
  if (!args || args_bytes != (int64_t)k->args_bytes)
    return tide_fail(ctx, TIDE_EINVAL, "%s: args of the wrong size (got %lld bytes, want %lld)", name, (long long)args_bytes,
                     (long long)k->args_bytes);
  *out = k;
  return TIDE_OK;
}

tide_status tide_kernel_run(tide_ctx *ctx, int32_t device, const char *name, const char *variant, const void *args,
                            int64_t args_bytes, void *stream) {
  const kernel *k;
  dev *d;
  TRY(ctx_device(ctx, device, &d));
  TRY(find_with_args(ctx, name, args, args_bytes, &k));
  return kernel_launch_on(d, k, variant, args, stream);
}

int64_t tide_kernel_explain(tide_ctx *ctx, int32_t device, const char *name, const void *args, int64_t args_bytes, char *text,
                            int64_t text_bytes) {
  const kernel *k;
  dev *d;
  char why[256], where[32];
  if (ctx_device(ctx, device, &d) || find_with_args(ctx, name, args, args_bytes, &k))
    return snprintf(text, (size_t)text_bytes, "%s\n", tide_errmsg(ctx));
  if (k->check && k->check(args, why, sizeof why)) return snprintf(text, (size_t)text_bytes, "%s: %s\n", name, why);
  const kernel_variant *chosen = choose(k, &d->caps, NULL, args, why, sizeof why);
  int64_t at = 0;
  for (int i = k->n_variants - 1; i >= 0; i--) {
    const kernel_variant *v = &k->variants[i];
    bool no = refuses(v, &d->caps, args, why, sizeof why);
    size_t left = text_bytes > at ? (size_t)(text_bytes - at) : 0;
    at += snprintf(left ? text + at : NULL, left, "%-12s %s %s\n", v->name, v == chosen ? "serves on" : no ? "refuses:" : "would serve on",
                   no ? why : dev_name(d, where));
  }
  return at;
}
