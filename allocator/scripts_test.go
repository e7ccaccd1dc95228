package allocator

// A pod joins a claim and is deleted by force while its container is being created, and the GPU is allocated to another
// claim. The agent reads the kubelet's records after the pod has left the claim, or before.
const (
	unknownJoins = `
		configure 5; rounds 3; schedule; prepare 0; join 2; prepare 1; start 1; force 1; unprepare 1; end 2; unprepare 2;
		run agent; pass; run agent; run agent; schedule; prepare 0`
	knownJoins = `
		configure 5; rounds 3; schedule; prepare 0; run agent; join 2; prepare 1; start 1; pass; query 3; deliver 3; pass; pass;
		force 1; unprepare 1; end 2; unprepare 2;
		run agent; pass; run agent; run agent; schedule; prepare 0`
)

// scripts are action sequences of the model test for rules that random sequences seldom cover, by the name of the mutant
// that disables the rule. Each violates a property with that mutant, and none with all rules. After a script, the ledger
// must converge to the plan while the pods that hold wanted devices keep running.
var scripts = map[string]string{
	"the gate prepares available entries only": `
		configure 5; rounds 6; schedule; rounds 7; force 2; unprepare; restart agent, no state; schedule; run kubelet`,
	"a runtime that was queried before a claim was unprepared proves nothing": `
		configure 5; run agent; run agent; schedule; run kubelet; force 0; unprepare; run agent; schedule; run kubelet`,
	"an allocated device of the slice is not released": `
		configure 5; rounds 2; schedule; hang 2; pass; configure 0; rounds 3`,
	"claims are queried after schedulers have received the slices": `
		configure 5; rounds 2; configure 0; reconcile; query 4; schedule; hang 2; pass; deliver 4; rounds 3`,
	"claims are adopted without state": `
		configure 5; rounds 4; schedule; rounds 6; restart agent, no state; rounds 4; rounds 0; rounds 0; run agent; configure 0; run agent`,
	"the container of a claim holds no other entry": `
		run agent; run agent; stall; run agent; configure 5; rounds 3; schedule; prepare 2; restart agent, no state`,
	"the checkpoint is later than the record of a grant": `
		rounds 3; create 0; configure 1; run agent; allocate 0; pass;
		process 0; insert 0; hang 0; pass;
		query 2; deliver 2; reconcile; land 0; query 2; deliver 2; reconcile; rounds 7`,
	"the runtime is queried after the checkpoint": `
		rounds 3; create 0; configure 1; run agent; allocate 0; pass;
		process 0; insert 0; write 0; land 1; land 0; pass; pass; pass;
		query 2; deliver 2; reconcile; start 0; force 0; query 1; resend 0; process 0; land 0;
		query 2; deliver 2; query 3; deliver 3; query 0; deliver 0; reconcile; close; reconcile`,
	"the runtime is queried for sandboxes": `
		rounds 3; create 0; configure 1; run agent; allocate 0; insert 0; write 0; land 0; hang 0;
		rounds 5; start 0; force 0; rounds 7`,
	"a list waits for the kubelet's records": `
		rounds 3; create 0; configure 1; run agent; process 0; land 0; allocate 0; restart agent, no state;
		run agent; run agent; run agent; process 0; insert 0`,
	"a start with state queries the runtime": `
		rounds 3; create 0; run kubelet; configure 1; run agent; run kubelet;
		force 0; query 1; resend 0; process 0; land 0; restart kubelet; restart agent, no state; rounds 5; restart agent; rounds 2`,
	"a start queries the runtime": `
		rounds 3; create 0; configure 1; run agent; allocate 0; insert 0; write 0; land 0;
		restart agent, no state; start 0; force 0; query 1; query 3; deliver 3; process old 0; land 0; drop old 1;
		pass; appear 0; pass; pass; pass; query 2; deliver 2; reconcile; connect 0; send 0;
		process 0; land 0; query 2; deliver 2; reconcile`,
	"an ID is saved while the kubelet may list it": `
		rounds 4; create 0; hang 0; configure 1; rounds 7; configure 0; run agent; restart agent; run agent; run kubelet;
		configure 1; run agent; configure 0; run agent; pass; run agent; pass; run agent; pass; run agent; pass; run agent;
		process 1; land 0; run agent; pass; run agent; resend 2; process 2; land 0; run agent; pass; run agent;
		pass; run agent; pass; run agent; pass; run agent; pass; run agent; pass; run agent; allocate 0; process 0; insert 0`,
	"an advertised ID is not dropped while it waits": `
		rounds 4; create 0; hang 0; configure 1; rounds 7; configure 0; run agent; configure 1; run agent;
		configure 0; run agent; pass; run agent; pass; run agent; pass; run agent; pass; run agent; pass; run agent; pass; run agent;
		pass; run agent; allocate 0; process 0; insert 0`,
	"a released ID stays listed": `
		rounds 4; create 0; hang 0; configure 1; rounds 1; run agent; pass; run agent; pass; run agent; pass; run agent;
		configure 0; run agent; pass; run agent; pass; run agent; pass; run agent; pass; run agent; pass; run agent; pass; run agent;
		pass; run agent; allocate 0; process 0; insert 0`,
	"a released ID stays listed for listLag": `
		rounds 4; create 0; hang 0; configure 1; rounds 1; run agent; pass; run agent; pass; run agent; pass; run agent;
		configure 0; run agent; pass; run agent; pass; run agent; pass; run agent; pass; run agent; pass; run agent; pass; run agent;
		pass; run agent; allocate 0; process 0; insert 0`,
	"the checkpoint contains the grants of the earlier agent": `
		rounds 6; create 6; run agent, grant late; partition 2; hang 2; rounds 2; restart agent, no state; rounds 6`,
	"advertised IDs are available once lists may be sent": `
		rounds 3; configure 1; run agent; process 0; query 0; deliver 0; reconcile; close; reconcile;
		send 1; process 1; process 1; create 1; allocate 0; configure 0; restart agent, no state;
		query 2; deliver 2; query 3; deliver 3; reconcile`,
	"an unknown ID was granted up to the start": `
		rounds 3; create 0; resend 0; process 0; allocate 0; configure 1; restart agent, no state; insert 0; hang 0;
		query 2; deliver 2; reconcile; land 0; query 2; deliver 2; reconcile; rounds 7`,
	"advertised IDs are tracked without state": `
		rounds 3; configure 1; run agent; pass; run agent; pass; run agent; pass; run agent; pass; run agent; pass; run agent; pass; run agent;
		process 1; land 0; process 1; land 0; create 1; allocate 0; insert 0; hang 0; configure 0; restart agent, no state;
		drop old 0; drop old 1; pass; pass; run agent; run agent`,
	"a claim waits for a ledger with the last grant": `
		configure 5; rounds 3; schedule; prepare 0; start 0; appear 0; force 0; unprepare; schedule; prepare 0`,
	"a prepared claim is prepared again": `
		configure 5; rounds 7; schedule; run kubelet; restart kubelet; join 2; prepare 0`,
	"a share waits for a ledger with the last ended claim": `
		configure 6; rounds 6; schedule 1; schedule 1; rounds 4; force 0; schedule 1; unprepare 0; rounds 4`,
	"the runtime is queried after a claim has ended": `
		run agent; configure 6; run agent; schedule; run kubelet; force 2; schedule; unprepare 2; run agent; prepare 0`,
	"a pod may have joined a claim":                                  unknownJoins,
	"a pod may have joined a claim at its end":                       unknownJoins,
	"a container of a pod that joined a claim appears after its end": unknownJoins,
	"pods that joined a claim are known":                             knownJoins,
	"pods that joined a claim are known at its end":                  knownJoins,
	"pods that joined a claim are known after its end":               knownJoins,
	"a pod may have left a claim just before a read": `
		configure 5; rounds 3; schedule; prepare 0; join 2; prepare 1; start 1; pass;
		force 1; unprepare 1; query 3; deliver 3; end 2; unprepare 2;
		run agent; pass; run agent; run agent; schedule; prepare 0`,
	"a pod may have left a claim just before an earlier read": `
		configure 5; rounds 3; schedule; prepare 0; join 2; prepare 1; start 1; pass;
		force 1; unprepare 1; query 3; deliver 3; query 3; deliver 3; end 2; unprepare 2;
		run agent; pass; run agent; run agent; schedule; prepare 0`,
	"a pod may have joined a claim when the records were read": `
		configure 5; rounds 3; schedule; prepare 0; query 3; deliver 3; join 2; prepare 1; start 1; pass; pass;
		force 1; unprepare 1; end 2; unprepare 2;
		run agent; pass; run agent; run agent; schedule; prepare 0`,
	"a share waits for sandboxes without a claim": `
		configure 6; rounds 3; schedule 1; prepare 0; start 2; pass; query 3; deliver 3; pass; pass;
		force 2; unprepare 2; run agent; pass; run agent; run agent; schedule 1; prepare 0; schedule 1; prepare 0`,
	"a pod may have joined a claim of an earlier agent": `
		configure 5; rounds 3; schedule; prepare 0; join 2; prepare 1; start 1; force 1; unprepare 1; end 2; unprepare 2;
		restart agent; pass; run agent; run agent; schedule; prepare 0`,
	"a pod may have joined a claim for a share": `
		configure 6; rounds 3; schedule 1; prepare 0; force 2; join 2; prepare 1; start 1; force 1; unprepare 1; unprepare 2;
		run agent; pass; query 3; deliver 3; run agent; schedule 1; prepare 0; schedule 1; prepare 0`,
	"containers of other shares do not count": `
		configure 2; rounds 6; create 5; rounds 3; configure 1; rounds 7; rounds 7; configure 2`,
	"a share waits for containers without a claim": `
		configure 6; rounds 3; schedule 1; run kubelet; schedule 1; run kubelet; run agent;
		force 2; unprepare; restart agent, no state; rounds 7; rounds 7; schedule 1; prepare 0`,
	"an earlier agent's claims may have ended": `
		configure 6; rounds 3; schedule 1; run kubelet; schedule 1; run kubelet; run agent;
		force 2; unprepare; restart agent; schedule 1; prepare 0`,
	"claims may have ended while an entry was withdrawn": `
		configure 6; rounds 3; schedule 1; run kubelet; schedule 1; run kubelet; rounds 4;
		force 2; unprepare; restart agent, no state; rounds 7; rounds 7; schedule 1; prepare 0`,
	"an unknown part overlaps all": `
		rounds 5; create 5; query 1; run kubelet; deliver 3; force 1; long pass; rounds 7; partition 4; restart agent, no state; rounds 4; rounds 6`,
	"a start waits for containers": `
		rounds 4; create 3; rounds 0; force 0; rounds 6; configure 2; rounds 6; restart agent, no state; rounds 6; rounds 5`,
}
