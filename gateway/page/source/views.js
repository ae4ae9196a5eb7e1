// The views in the order of the navigation. first: in the bar of phones; icon: a path in a box of 24 by 24, drawn as lines;
// offered: a query (ASK); the navigation has the view only where it is true.
import { t } from "./texts.js";
import { Applications } from "./views/applications.js";
import { Devices } from "./views/devices.js";
import { Explain } from "./views/explain.js";
import { Health } from "./views/health.js";
import { History } from "./views/history.js";
import { Log } from "./views/log.js";
import { Logbook } from "./views/logbook.js";
import { Now } from "./views/now.js";
import { Query } from "./views/query.js";
import { OFFERED, StreetView } from "./views/street.js";
import { Subscriptions } from "./views/subscriptions.js";
import { System } from "./views/system.js";
import { Timers } from "./views/timers.js";

export const VIEWS = [
    { name: "now", title: t("view.now"), component: Now, first: true, icon: "M4 11 12 4l8 7M6 9.5V20h12V9.5M10 20v-6h4v6" },
    { name: "street", title: t("view.street"), component: StreetView, offered: OFFERED, icon: "M7 21V8q0-4 4-4h4M12 7h6l-1.5-3h-3zM4 21h16M15 11v4" },
    { name: "devices", title: t("view.devices"), component: Devices, first: true, icon: "M7 3h10v18H7zM10.5 17.5h3M10 7h4" },
    { name: "logbook", title: t("view.logbook"), component: Logbook, first: true, icon: "M6 3h12v18H6zM9 8h6M9 12h6M9 16h4" },
    { name: "health", title: t("view.health"), component: Health, first: true, icon: "M3 12h4l2.5-7 4 14 2.5-7h5" },
    { name: "applications", title: t("view.applications"), component: Applications, icon: "M12 3v4M12 17v4M3 12h4M17 12h4M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8" },
    { name: "history", title: t("view.history"), component: History, icon: "M4 4v16h16M7 15l4-5 3 3 5-7" },
    { name: "explain", title: t("view.explain"), component: Explain, icon: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18M9.5 9.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7M12 16.5v.01" },
    { name: "timers", title: t("view.timers"), component: Timers, icon: "M12 21a8 8 0 1 0 0-16 8 8 0 0 0 0 16M12 9v4l2.5 2M9.5 2.5h5" },
    { name: "query", title: t("view.query"), component: Query, icon: "m8 7-5 5 5 5M16 7l5 5-5 5M13.5 5l-3 14" },
    { name: "subscriptions", title: t("view.subscriptions"), component: Subscriptions, icon: "M5 19a1 1 0 1 0 0-.01M4 12a8 8 0 0 1 8 8M4 5a15 15 0 0 1 15 15" },
    { name: "log", title: t("view.log"), component: Log, icon: "M5 4h14M5 9h14M5 14h9M5 19h9M18 13v6M15.5 16.5 18 19l2.5-2.5" },
    { name: "system", title: t("view.system"), component: System, icon: "M5 6c0-2 14-2 14 0v12c0 2-14 2-14 0zM5 6c0 2 14 2 14 0M5 12c0 2 14 2 14 0" },
];
