/* An engine that links libtide alone: everything works but policies, and those say what to link. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "tide.h"

int main(void) {
  tide_ctx *ctx;
  if (tide_ctx_open(NULL, &ctx, NULL, 0)) return 1;
  if (dlsym(RTLD_DEFAULT, "lua_newstate")) {
    fprintf(stderr, "no_lua: libtide brought a Lua along\n");
    return 1;
  }
  const char *script = "return tide.policy.scorer{score = function() end}";
  tide_policy *untouched = (tide_policy *)&ctx, *policy = untouched;
  tide_status status = tide_policy_load(ctx, "mine", script, (int64_t)strlen(script), &policy);
  printf("%s: %s\n", tide_status_name(status), tide_errmsg(ctx));
  int good = status == TIDE_EUNSUPPORTED && policy == untouched && strstr(tide_errmsg(ctx), "link libtide_lua");
  tide_ctx_close(ctx);
  return good ? 0 : 1;
}
