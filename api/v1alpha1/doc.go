// Package v1alpha1 has the types of Berth's own objects in a Kubernetes cluster, group berth.dev: the pools of addresses that
// the cluster's nodes share (IPPool), and what each node has of them (NodeNetwork). A cluster whose nodes get their pods'
// addresses by Node.spec.podCIDRs needs neither.
//
// A pool is shared out in blocks. The operator gives blocks to nodes and takes them back; the node's agent says what the
// node needs, and what it holds. Each field has one writer: the operator writes NodeNetworkSpec and IPPoolStatus, the agent
// writes NodeNetworkStatus, and people write IPPoolSpec. Both write by the resourceVersion that they have read (update, not
// patch), so that neither writes by what the other has changed meanwhile.
//
// # How a block comes to a node
//
//  1. The agent writes how many addresses of a pool the node needs: NodeNetworkStatus.Requests.
//  2. The operator notes the block for the node in IPPoolStatus (Given and Pending). The API server refuses that update if
//     anybody has changed the pool since the operator read it, so two operators never note one block for two nodes.
//  3. The operator writes the block to NodeNetworkSpec.Blocks.
//  4. The operator takes the note out of Pending. If the operator dies before, any operator goes on with step 3: a
//     note in Pending is completed, and never undone while its node is there.
//  5. The agent writes the block to NodeNetworkStatus.Held, and the API server refuses that if anybody has changed the
//     NodeNetwork since the agent read the block there, not withdrawn. Then the agent takes the block's lease into the node's
//     ledger, and gives out addresses of it. So an agent that has read an old version never uses a block that the operator has
//     withdrawn and given to another node by now.
//
// # How a block comes back
//
//  1. The node needs fewer addresses, and the operator withdraws the last block that it gave (Block.Withdrawn). If the node
//     needs more again, the operator takes that back before it gives another block.
//  2. The agent gives out no more addresses of the block. As soon as no pod has one and none of them rests, the agent
//     forgets the lease, and takes the block out of Held.
//  3. The operator takes the block, which is withdrawn and not held, out of NodeNetworkSpec.Blocks, and then out
//     of IPPoolStatus.Given. If the operator dies in between, the block is Given and no node has it: an operator
//     frees such a block after it has read all NodeNetworks anew, and only if nobody has changed the pool meanwhile.
//
// # When a NodeNetwork goes under a running agent
//
// The operator makes it anew, empty. The agent's first status of the new one has in Held all that its ledger has, at once,
// and the operator takes these blocks into the spec: nobody else has got them, because no operator frees a block of step 3
// that it did not itself take from a node, unless the agents of all nodes have written a status. A block in Held that another
// node has is refused: it never comes into the spec, and the pool says so (reason ClaimedTwice).
//
// +kubebuilder:object:generate=true
// +groupName=berth.dev
package v1alpha1
