// The tenant that is shown: its name is typed, or chosen from the most active ones.

import { byId, element, renderInto, setText } from "./dom.js";
import { plural } from "./format.js";

export const DEFAULT_TENANT = "default";
const NAME_PATTERN = /^[A-Za-z0-9._-]{1,64}$/;

export function createTenants(select) {
  const field = byId("tenant");
  field.addEventListener("change", () => {
    const name = field.value.trim() || DEFAULT_TENANT;
    const valid = NAME_PATTERN.test(name);
    field.setCustomValidity(valid ? "" : "1 to 64 letters, digits, dots, hyphens or underscores");
    if (valid) select(name);
    else field.reportValidity();
  });
  return {
    show(selected, tenants) {
      if (document.activeElement !== field) field.value = selected;
      const names = tenants?.most_active.map(({ tenant }) => tenant) ?? [];
      renderInto(byId("tenant-list"), names, () => names.map((name) => element("option", { value: name })));
      setText(byId("tenant-count"), tenants ? `of ${plural(tenants.known, "tenant")}` : "");
      const states = Object.entries(tenants?.by_state ?? {});
      byId("tenant-count").title = states.map(([state, number]) => `${number} ${state}`).join(", ");
    },
  };
}
