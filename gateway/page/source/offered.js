// Views that only some datasets have: those whose `offered` (a query, ASK) is true.
import { useEffect, useState } from "preact/hooks";

import { allowed, query, watchSession } from "./gateway.js";

// The views that the navigation offers. It asks again at each change of the view, until the answer is true.
export function useOffered(views, current) {
    const [found, setFound] = useState([]);
    useEffect(() => {
        let over = false;
        const ask = async () => {
            for (const view of views.filter((one) => one.offered && !found.includes(one))) {
                if (!allowed()) return;
                try {
                    const { result } = await query(view.offered);
                    if (result.boolean && !over) setFound((before) => [...before, view]);
                } catch { /* who may not ask is not offered it */ }
            }
        };
        ask();
        const unwatch = watchSession(ask);
        return () => {
            over = true;
            unwatch();
        };
    }, [views, current]);
    return views.filter((view) => !view.offered || found.includes(view));
}
