// The views in the order of the navigation. first: in the bar of phones; icon: a path in a box of 24 by 24, drawn as lines.
import { Health } from "./views/health.js";
import { Log } from "./views/log.js";
import { Now } from "./views/now.js";
import { Query } from "./views/query.js";
import { Subscriptions } from "./views/subscriptions.js";
import { Timers } from "./views/timers.js";

export const VIEWS = [
    { name: "now", title: "Now", component: Now, first: true, icon: "M4 11 12 4l8 7M6 9.5V20h12V9.5M10 20v-6h4v6" },
    { name: "query", title: "Query", component: Query, first: true, icon: "m8 7-5 5 5 5M16 7l5 5-5 5M13.5 5l-3 14" },
    { name: "timers", title: "Timers", component: Timers, first: true, icon: "M12 21a8 8 0 1 0 0-16 8 8 0 0 0 0 16M12 9v4l2.5 2M9.5 2.5h5" },
    { name: "subscriptions", title: "Subscriptions", component: Subscriptions, icon: "M5 19a1 1 0 1 0 0-.01M4 12a8 8 0 0 1 8 8M4 5a15 15 0 0 1 15 15" },
    { name: "log", title: "Log", component: Log, icon: "M5 4h14M5 9h14M5 14h9M5 19h9M18 13v6M15.5 16.5 18 19l2.5-2.5" },
    { name: "health", title: "Health", component: Health, first: true, icon: "M3 12h4l2.5-7 4 14 2.5-7h5" },
];
